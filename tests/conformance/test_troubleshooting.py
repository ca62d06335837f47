from commandbus.testing.conformance.troubleshooting import TroubleshootingSuite


class TestTroubleshooting(TroubleshootingSuite):
    pass
