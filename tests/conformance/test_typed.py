from commandbus.testing.conformance.typed import TypedSuite


class TestTyped(TypedSuite):
    pass
