"""Reflection and channelz: what generic tools find without our stubs."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from weir.engine.errors import QueueFullError

from tests.contract.fake_engine import FakeEngine

pytestmark = pytest.mark.usefixtures("app")


async def ask(channel: grpc.aio.Channel, request: reflection_pb2.ServerReflectionRequest):  # type: ignore[no-untyped-def]
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    return await call.read()


async def test_reflection_lists_every_public_service_and_no_admin(channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    assert {service.name for service in answer.list_services_response.service} == {
        "weir.v1.InferenceService",
        "weir.v1.BudgetService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "xds.service.orca.v3.OpenRcaService",
    }


async def test_reflection_describes_the_inference_service(channel: grpc.aio.Channel) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="weir.v1.InferenceService")
    answer = await ask(channel, request)
    files = [FileDescriptorProto.FromString(data) for data in answer.file_descriptor_response.file_descriptor_proto]
    [service] = [s for file in files for s in file.service if s.name == "InferenceService"]
    assert {method.name: method.server_streaming for method in service.method} == {
        "Generate": True,
        "Complete": False,
        "Tokenize": False,
        "GetModel": False,
        "Cancel": False,
    }


async def test_tools_that_ask_for_newer_reflection_are_told_to_fall_back(channel: grpc.aio.Channel) -> None:
    """They take exactly this code for a server that has v1alpha only."""
    call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(iter([b""]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_channelz_names_peers_to_the_operator_and_to_nobody_else(
    channel: grpc.aio.Channel, admin_channel: grpc.aio.Channel
) -> None:
    ask_for_sockets = channelz_pb2.GetTopChannelsRequest()
    assert await channelz_pb2_grpc.ChannelzStub(admin_channel).GetTopChannels(ask_for_sockets)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channelz_pb2_grpc.ChannelzStub(channel).GetTopChannels(ask_for_sockets)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_describes_every_service_it_lists(channel: grpc.aio.Channel) -> None:
    listed = await ask(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    for service in listed.list_services_response.service:
        answer = await ask(channel, reflection_pb2.ServerReflectionRequest(file_containing_symbol=service.name))
        files = [FileDescriptorProto.FromString(data) for data in answer.file_descriptor_response.file_descriptor_proto]
        assert service.name in {f"{file.package}.{found.name}" for file in files for found in file.service}


async def test_channelz_and_reflection_answer_when_no_request_is_admitted(
    channel: grpc.aio.Channel, admin_channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    engine.reserve_error = QueueFullError(1, 0, 1, 1, 1.0)
    servers = await channelz_pb2_grpc.ChannelzStub(admin_channel).GetServers(channelz_pb2.GetServersRequest())
    assert len(servers.server) >= 2
    assert (await ask(channel, reflection_pb2.ServerReflectionRequest(list_services=""))).HasField(
        "list_services_response"
    )
