from commandbus.testing.conformance.sending import SendingSuite


class TestSending(SendingSuite):
    pass
