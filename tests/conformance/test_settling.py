from commandbus.testing.conformance.settling import SettlingSuite


class TestSettling(SettlingSuite):
    pass
