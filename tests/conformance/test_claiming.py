from commandbus.testing.conformance.claiming import ClaimingSuite


class TestClaiming(ClaimingSuite):
    pass
