"""Support for plain kernels of numba-cuda-mlir; ``compiler.plain`` describes the functions."""

from __future__ import annotations

from numba_marlin.compiler.plain.places import check_place


def type_of(intrinsic):
    from numba_cuda_mlir.descriptor import mlir_target

    context = mlir_target.typing_context
    context.refresh()  # to know intrinsics that were created since the last compilation
    return context.resolve_value_type(intrinsic)


def intrinsic_of(snippet):
    from numba_cuda_mlir.extending import intrinsic

    return intrinsic(snippet)


def literal_required():
    from numba_cuda_mlir.numba_cuda.core.errors import RequireLiteralValue

    return RequireLiteralValue


def address_intrinsic(name: str, shared: bool):
    from numba_cuda_mlir import types
    from numba_cuda_mlir._mlir import ir
    from numba_cuda_mlir._mlir.dialects import llvm
    from numba_cuda_mlir._mlir.extras import types as mlir_types
    from numba_cuda_mlir.extending import intrinsic
    from numba_cuda_mlir.lowering_utilities import memref_to_llvm_ptr

    def snippet(typingctx, array, index):
        check_place(name, types, array, index)

        def codegen(builder, target, arguments, keywords):
            memory, indices = (builder.load_var(argument) for argument in arguments)
            if not isinstance(indices, (tuple, list)):
                indices = [indices]
            place = memref_to_llvm_ptr(memory, list(indices), memory.type.element_type)
            space = ir.Type.parse("!llvm.ptr<3>" if shared else "!llvm.ptr")
            if place.type != space:
                place = llvm.addrspacecast(space, place)
            word = mlir_types.i32() if shared else mlir_types.i64()
            builder.store_var(target, llvm.ptrtoint(word, place))

        return (types.uint32 if shared else types.uint64)(array, index), codegen

    snippet.__name__ = name
    return intrinsic(snippet)
