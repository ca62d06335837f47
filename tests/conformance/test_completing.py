from commandbus.testing.conformance.completing import CompletingSuite


class TestCompleting(CompletingSuite):
    pass
