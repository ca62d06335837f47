from commandbus.testing.conformance.process_effects import GivenUpSuite, ProcessEffectSuite


class TestProcessEffects(ProcessEffectSuite):
    pass


class TestGivenUp(GivenUpSuite):
    pass
