from commandbus.testing.conformance.process_routing import RoutingSuite


class TestRouting(RoutingSuite):
    pass
