from commandbus.testing.conformance.chains import ChainsSuite


class TestChains(ChainsSuite):
    pass
