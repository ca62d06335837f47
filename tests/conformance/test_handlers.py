from commandbus.testing.conformance.handlers import HandlersSuite


class TestHandlers(HandlersSuite):
    pass
