from commandbus.testing.conformance.bad_input import BadInputSuite


class TestBadInput(BadInputSuite):
    pass
