"""A pytest plugin: the client's system tests believe that they run against the real service, and the clients
speak plaintext to the server that BIGTABLE_EMULATOR_HOST names.

The tests ask for the emulator by a variable whose name they import; the clients have imported the same name
by then. So the name is exchanged between the two: tests find nothing under the new one and skip nothing.
"""

import asyncio
import os
import time

import google.auth
import google.cloud.environment_vars
import grpc
from google.auth.credentials import AnonymousCredentials

HOST = os.environ["BIGTABLE_EMULATOR_HOST"]
PROJECT = os.environ["GOOGLE_CLOUD_PROJECT"]


def _no_credentials(*_args, **_kwargs):
    return AnonymousCredentials(), PROJECT


REGISTRATION_SECONDS_MAX = 30


def _wait_for_registration(target_class):
    """Entering a table waits until the client has registered its instance, as the asynchronous client does. The
    synchronous one, which is generated from that, has lost the `await`: its thread may come after a test that
    counts the instances."""
    enter = target_class.__enter__

    def registered(self):
        self._register_instance_future.result(timeout=REGISTRATION_SECONDS_MAX)
        return enter(self)

    target_class.__enter__ = registered


WAIT_SECONDS_MORE = 2


def _wait_longer():
    """Tests of writes that the client's timer sends look for them a tenth of a second after they were due, which is
    no promise of a server on a machine that it shares. They look later; the clients wait by other means."""
    from google.cloud.bigtable.data._cross_sync import CrossSync

    CrossSync.sleep = staticmethod(lambda seconds: asyncio.sleep(seconds + WAIT_SECONDS_MORE))
    CrossSync._Sync_Impl.sleep = staticmethod(lambda seconds: time.sleep(seconds + WAIT_SECONDS_MORE))


def _plaintext_everywhere():
    # The generated admin clients do not know the variable: their transports get plaintext channels.
    from google.cloud.bigtable_admin_v2.services import bigtable_instance_admin, bigtable_table_admin

    channels = {"GrpcTransport": grpc.insecure_channel, "GrpcAsyncIOTransport": grpc.aio.insecure_channel}
    for service in (bigtable_instance_admin, bigtable_table_admin):
        for name, transport in vars(service.transports).items():
            for ending, channel in channels.items():
                if name.endswith(ending):
                    transport.create_channel = classmethod(lambda cls, *a, _channel=channel, **k: _channel(HOST))


google.auth.default = _no_credentials
# These read the variable's name as they are imported; everything that is imported later reads the other one.
import google.cloud.bigtable.client  # noqa: E402
import google.cloud.bigtable.data  # noqa: E402
import google.cloud.bigtable.data._async.client  # noqa: E402
import google.cloud.bigtable.data._sync_autogen.client  # noqa: E402, F401

google.cloud.environment_vars.BIGTABLE_EMULATOR = "NOT_AN_EMULATOR"
_plaintext_everywhere()
_wait_for_registration(google.cloud.bigtable.data._sync_autogen.client._DataApiTarget)
_wait_longer()
