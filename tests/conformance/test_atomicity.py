from commandbus.testing.conformance.atomicity import AtomicitySuite


class TestAtomicity(AtomicitySuite):
    pass
