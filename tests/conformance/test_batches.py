from commandbus.testing.conformance.batches import BatchSuite


class TestBatches(BatchSuite):
    pass
