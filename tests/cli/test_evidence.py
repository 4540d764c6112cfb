"""What `doctor` says of models and cost is what the committed results say."""

from tools import evidence


def test_the_file_is_up_to_date():
    assert evidence.FILE.read_text() == evidence.text()


def test_it_knows_the_devices():
    found = evidence.architectures()
    assert found["LlamaForCausalLM"]["CPU"] == "0.32.0"
    assert "0.33.0" in found["LlamaForCausalLM"]["H200"]
    assert "CPU" not in found["DeepseekV32ForCausalLM"]
