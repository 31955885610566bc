import pytest

from keras_mwms.engine.settings import Settings
from keras_mwms.errors import ClusterConfigError


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Settings(300.0, 600.0)),
        ({"KERAS_MWMS_START_TIMEOUT": "2.5"}, Settings(2.5, 600.0)),
        ({"KERAS_MWMS_TIMEOUT": " 90 "}, Settings(300.0, 90.0)),
        ({"KERAS_MWMS_TIMEOUT": ""}, Settings(300.0, 600.0)),
        ({"KERAS_MWMS_TIMEOUT": "2e6"}, Settings(300.0, 2e6)),
    ],
)
def test_seconds_are_read(environment, expected):
    assert Settings.from_environment(environment) == expected


@pytest.mark.parametrize("name", ["START_TIMEOUT", "TIMEOUT"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "5 min", "2000001"])
def test_nonsense_is_refused(name, text):
    variable = f"KERAS_MWMS_{name}"
    with pytest.raises(ClusterConfigError, match=f"{variable}='{text}'"):
        Settings.from_environment({variable: text})
