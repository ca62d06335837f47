from commandbus.testing.conformance.progress import ProgressSuite


class TestProgress(ProgressSuite):
    pass
