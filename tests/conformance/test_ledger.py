from commandbus.testing.conformance.ledger import LedgerSuite


class TestLedger(LedgerSuite):
    pass
