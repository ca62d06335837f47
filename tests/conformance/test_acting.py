from commandbus.testing.conformance.acting import ActingSuite


class TestActing(ActingSuite):
    pass
