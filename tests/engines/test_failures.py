"""The reason of a failure."""

import pytest

from confident_decoding.engines.failures import cause_in, explain

LOG = """\
(EngineCore pid=7) INFO 11-30 08:13:49 [core.py:84] Initializing
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900]   File "loader.py", line 3, in load
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900] confident_decoding.config.ConfigError: it cannot start:
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900]   unsupported together with x.
Traceback (most recent call last):
  File "core_client.py", line 9, in __init__
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_cause_is_found_in_the_log():
    assert cause_in(LOG) == "it cannot start:   unsupported together with x."
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    assert explain(error, LOG) == "it cannot start: unsupported together with x."
    assert explain(error, "nothing here") == "Engine core initialization failed. See root cause above."


def test_an_error_that_says_it_itself_is_not_looked_up():
    assert explain(ValueError("the prompt is too long"), LOG) == "the prompt is too long."


def test_no_device():
    error = RuntimeError("Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`")
    assert "no GPU that this build supports" in explain(error, "")


def test_a_configuration_error_without_pydantics_frame():
    from pydantic import BaseModel, field_validator

    class Model(BaseModel):
        architecture: str

        @field_validator("architecture")
        @classmethod
        def known(cls, value):
            raise ValueError(f"{value} is not supported")

    with pytest.raises(ValueError) as raised:
        Model(architecture="X")
    assert explain(raised.value, "") == "X is not supported."
