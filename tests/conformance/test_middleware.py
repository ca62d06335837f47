from commandbus.testing.conformance.middleware import MiddlewareSuite


class TestMiddleware(MiddlewareSuite):
    pass
