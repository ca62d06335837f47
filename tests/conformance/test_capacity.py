from commandbus.testing.conformance.capacity import CapacitySuite


class TestCapacity(CapacitySuite):
    pass
