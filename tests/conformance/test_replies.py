from commandbus.testing.conformance.replies import ReplySuite


class TestReply(ReplySuite):
    pass
