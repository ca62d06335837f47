from commandbus.testing.conformance.process_ends import ProcessEndsSuite


class TestProcessEnds(ProcessEndsSuite):
    pass
