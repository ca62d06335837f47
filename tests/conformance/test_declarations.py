from commandbus.testing.conformance.declarations import DeclarationsSuite


class TestDeclarations(DeclarationsSuite):
    pass
