"""How far an engine is, from the bar that vLLM is given."""

from confident_decoding.engines.counting import counting


def test_finished_requests_are_counted_and_nothing_is_drawn(capfd):
    """As vLLM uses a bar: prompts are read in one, requests finish in another whose time it divides by."""
    told = []
    make = counting(lambda done, total: told.append((done, total)))
    reading = make(range(4), desc="Rendering prompts")
    assert list(reading) == [0, 1, 2, 3]
    reading.update(1)  # as it does itself where reading takes long
    shown = make(total=4, desc="Processed prompts", dynamic_ncols=True, postfix="0 toks/s")
    for _ in range(4):
        assert shown.format_dict["elapsed"] > 0
        shown.postfix = "9 toks/s"
        shown.update(1)
    shown.refresh()
    shown.close()
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert capfd.readouterr() == ("", "")
