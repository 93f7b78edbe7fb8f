"""From PTX text to kernels made of decoded instructions and basic blocks.

``parser`` reads a module and ``body`` the statements of a kernel, through the tokens of ``lexer``;
``variables`` reads what lies in memory, ``constants`` expressions, ``operands`` what instructions
take; ``registers`` and ``scopes`` resolve names, ``locations`` lines of the source. ``functions``
finds functions, ``calls`` replaces calls by their bodies, ``rewriting`` writes as other
instructions what the machine has none for, ``cfg`` finds basic blocks and where branches
reconverge. The result is plain data, ``program``: that is what the other groups import.
PtxSyntaxError, UnknownInstruction and LimitExceeded name the line. Imports ``errors`` and
``limits`` only.
"""
