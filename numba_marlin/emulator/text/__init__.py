"""From PTX text to kernels made of decoded instructions and basic blocks.

``parser`` reads a module and ``body`` the statements of a kernel, from ``lexer``'s tokens;
``scopes`` resolves names, ``calls`` replaces calls by the bodies of functions, ``cfg`` finds basic
blocks and where branches reconverge. The result is plain data, ``program``: that is what the other
groups import. PtxSyntaxError, UnknownInstruction and LimitExceeded name the line. Imports
``errors`` and ``limits`` only.
"""
