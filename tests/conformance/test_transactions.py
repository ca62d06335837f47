from commandbus.testing.conformance.transactions import TransactionsSuite


class TestTransactions(TransactionsSuite):
    pass
