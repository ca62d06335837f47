from commandbus.testing.conformance.leases import LeasesSuite


class TestLeases(LeasesSuite):
    pass
