from commandbus.testing.conformance.groups import GroupsSuite


class TestGroups(GroupsSuite):
    pass
