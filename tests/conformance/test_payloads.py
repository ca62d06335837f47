from commandbus.testing.conformance.payloads import PayloadsSuite


class TestPayloads(PayloadsSuite):
    pass
