from commandbus.testing.conformance.unknown_handlers import UnknownHandlersSuite


class TestUnknownHandlers(UnknownHandlersSuite):
    pass
