from commandbus.testing.conformance.leases import LeasesSuite, ReclaimerSuite


class TestLeases(LeasesSuite):
    pass


class TestReclaimer(ReclaimerSuite):
    pass
