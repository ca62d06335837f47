from commandbus.testing.conformance.atomic_services import AtomicServicesSuite


class TestAtomicServices(AtomicServicesSuite):
    pass
