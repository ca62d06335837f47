from commandbus.testing.conformance.schedules import DaylightSavingSuite, ScheduleSuite


class TestSchedules(ScheduleSuite):
    pass


class TestDaylightSaving(DaylightSavingSuite):
    pass
