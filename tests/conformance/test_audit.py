from commandbus.testing.conformance.audit import AuditSuite


class TestAudit(AuditSuite):
    pass
