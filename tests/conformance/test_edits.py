from commandbus.testing.conformance.edits import (
    ManySuite,
    ReprioritiseSuite,
    RescheduleSuite,
    ResendSuite,
)


class TestReschedule(RescheduleSuite):
    pass


class TestReprioritise(ReprioritiseSuite):
    pass


class TestMany(ManySuite):
    pass


class TestResend(ResendSuite):
    pass
