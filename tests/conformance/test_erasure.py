from commandbus.testing.conformance.erasure import ErasureSuite


class TestErasure(ErasureSuite):
    pass
