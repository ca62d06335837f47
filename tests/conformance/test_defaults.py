from commandbus.testing.conformance.defaults import DefaultsSuite


class TestDefaults(DefaultsSuite):
    pass
