from commandbus.testing.conformance.deaths import DeathsSuite


class TestDeaths(DeathsSuite):
    pass
