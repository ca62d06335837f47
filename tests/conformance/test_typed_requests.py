from commandbus.testing.conformance.typed_requests import TypedRequestsSuite


class TestTypedRequests(TypedRequestsSuite):
    pass
