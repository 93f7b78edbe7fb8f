"""Support for plain kernels of numba-cuda; ``compiler.plain`` describes the functions."""

from __future__ import annotations

from numba_marlin.compiler.plain.places import check_place


def type_of(intrinsic):
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.typing_context
    context.refresh()  # to know intrinsics that were created since the last compilation
    return context.resolve_value_type(intrinsic)


def intrinsic_of(snippet):
    from numba.cuda.extending import intrinsic

    return intrinsic(snippet)


def literal_required():
    from numba.cuda.core.errors import RequireLiteralValue

    return RequireLiteralValue


def address_intrinsic(name: str, shared: bool):
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic
    from numba.cuda.np.arrayobj import make_array

    def snippet(typingctx, array, index):
        check_place(name, types, array, index)

        def codegen(context, builder, signature, arguments):
            array_type, index_type = signature.args
            indices = (
                cgutils.unpack_tuple(builder, arguments[1], count=len(index_type))
                if isinstance(index_type, types.BaseTuple)
                else [arguments[1]]
            )
            kinds = list(index_type) if isinstance(index_type, types.BaseTuple) else [index_type]
            indices = [
                context.cast(builder, value, kind, types.intp)
                for value, kind in zip(indices, kinds)
            ]
            place = cgutils.get_item_pointer(
                context,
                builder,
                array_type,
                make_array(array_type)(context, builder, arguments[0]),
                indices,
            )
            if not shared:
                return builder.ptrtoint(place, ir.IntType(64))
            window = ir.PointerType(place.type.pointee, addrspace=3)
            return builder.ptrtoint(builder.addrspacecast(place, window), ir.IntType(32))

        return (types.uint32 if shared else types.uint64)(array, index), codegen

    snippet.__name__ = name
    return intrinsic(snippet)
