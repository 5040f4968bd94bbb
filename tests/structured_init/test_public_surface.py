"""The public surface of the library."""

import structured_init


def test_the_public_surface_is_what_is_listed():
    assert sorted(structured_init.__all__) == structured_init.__all__
    assert all(hasattr(structured_init, name) for name in structured_init.__all__)
    expected = {"Initializer", "Compose", "initialize", "InitReport", "Default", "TruncatedNormal", "KaimingUniform"}
    expected |= {"Positions", "Mimetic", "attention_sites", "register_attention", "AttentionSite", "PositionSite"}
    assert expected <= set(structured_init.__all__)


def test_initializer_classes_take_plain_arguments_only():
    """What YAML can write: each argument has a default and keeps it under its own name."""
    import inspect

    for name in ("Default", "TruncatedNormal", "KaimingUniform", "Positions", "Mimetic"):
        cls = getattr(structured_init, name)
        made = cls()
        for argument, parameter in inspect.signature(cls).parameters.items():
            assert isinstance(parameter.default, str | int | float | bool | None), (name, argument)
            assert getattr(made, argument) == parameter.default
