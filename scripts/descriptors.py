"""Writes crates/server/descriptors.bin: the FileDescriptorSet that gRPC reflection serves.

The messages are those of the installed Python packages, so no protoc and no copies of .proto files are
needed. Those packages carry no service descriptors; the services are added from the table that the server
is generated from (crates/server/src/rpcs.rs), each in a file of its own. Messages that the packages lack
are added from SESSION. RPCs without messages in the table, which are not served, are left out. So are
source positions and comments, which keeps the file small. To renew it, from the root of the project:

    python3 -m venv /tmp/descriptors
    /tmp/descriptors/bin/pip install google-cloud-bigtable==2.50.2 grpcio-health-checking
    /tmp/descriptors/bin/python scripts/descriptors.py crates/server/descriptors.bin
"""

import importlib
import pkgutil
import re
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

# Services are found in these packages' proto-plus types and in plain _pb2 modules.
ROOTS = [
    "google.cloud.bigtable_v2.types",
    "google.cloud.bigtable_admin_v2.types",
]
MODULES = [
    "google.longrunning.operations_pb2",
    "google.iam.v1.iam_policy_pb2",
    "google.iam.v1.policy_pb2",
    "google.protobuf.empty_pb2",
    "grpc_health.v1.health_pb2",
]
RPCS = Path(__file__).parent.parent / "crates/server/src/rpcs.rs"
# The paths of the table's types, as the server's `api` module names them.
PACKAGES = {
    "v2": "google.bigtable.v2",
    "kept": "google.bigtable.v2",
    "admin": "google.bigtable.admin.v2",
    "iam": "google.iam.v1",
    "longrunning": "google.longrunning",
    "session": "google.bigtable.v2",
    "spelled_out": "google.bigtable.admin.v2",
    "instances": "google.bigtable.admin.v2",
}
# What crates/server/src/api/session.rs has of the messages that the packages lack: (field, number, type, choice)
# by message. A type in capitals is one of protobuf's own.
SESSION = {
    "GetClientConfigurationRequest": [
        ("instance_name", 1, "STRING", None),
        ("app_profile_id", 2, "STRING", None),
    ],
    "ClientConfiguration": [
        ("session_configuration", 2, "SessionClientConfiguration", None),
        ("stop_polling", 3, "BOOL", "polling"),
    ],
}


def root_files():
    """The file descriptors that messages of the packages live in."""
    files = {}
    for root in ROOTS:
        package = importlib.import_module(root)
        names = [root] + [f"{root}.{m.name}" for m in pkgutil.iter_modules(package.__path__)]
        for name in names:
            module = importlib.import_module(name)
            for value in vars(module).values():
                pb = getattr(value, "pb", None)
                if isinstance(value, type) and callable(pb):
                    try:
                        file = value.pb().DESCRIPTOR.file
                    except (AttributeError, TypeError):
                        continue
                    files[file.name] = file
    for name in MODULES:
        file = importlib.import_module(name).DESCRIPTOR
        files[file.name] = file
    return files


def services():
    """(package, service, [(rpc, input, output, streams)]) of every service in the table."""
    text = RPCS.read_text()
    lists = {
        name: re.findall(r'(streaming\((?:\w+\()*)?(?:served|not_yet)\(\s*"(\w+)",\s*"([\w:]+)",\s*"([\w:]+)"', body)
        for name, body in re.findall(r"const (\w+): &\[Rpc\] = &\[(.*?)\n\];", text, re.S)
    }
    declared = r'package: "([\w.]+)",\s*name: "(\w+)",\s*served_by: "[\w:]+",\s*rpcs: (\w+),'
    for package, name, rpcs in re.findall(declared, text):
        yield package, name, [(r, full(i), full(o), bool(s)) for s, r, i, o in lists[rpcs]]


def full(path):
    """The full name of a type of the table."""
    if path == "Empty":
        return "google.protobuf.Empty"
    package, name = path.split("::")
    return f"{PACKAGES[package]}.{name}"


def session_file(home):
    """The file of the messages of SESSION; `home` says in which file each known one is."""
    file = descriptor_pb2.FileDescriptorProto()
    file.name = "google/bigtable/v2/client_configuration.proto"
    file.package = PACKAGES["session"]
    file.syntax = "proto3"
    for name, fields in SESSION.items():
        if f"{file.package}.{name}" in home:
            sys.exit(f"the packages have {name} now: take it out of SESSION")
        message = file.message_type.add(name=name)
        for field_name, number, kind, choice in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_OPTIONAL
            if kind.isupper():
                field.type = getattr(field, f"TYPE_{kind}")
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{file.package}.{kind}"
                file.dependency.append(home[f"{file.package}.{kind}"])
            if choice is not None:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=choice)
    return file


def main():
    out = descriptor_pb2.FileDescriptorSet()
    done = set()

    def add(file):
        """Adds a file after everything that it imports."""
        if file.name in done:
            return
        done.add(file.name)
        for imported in file.dependencies:
            add(imported)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        out.file.append(proto)

    for name, file in sorted(root_files().items()):
        add(file)
    known = {f"{f.package}.{m.name}": f.name for f in out.file for m in f.message_type}
    out.file.append(session_file(known))
    home = {f"{f.package}.{m.name}": f.name for f in out.file for m in f.message_type}
    for package, name, rpcs in services():
        if any(f.package == package and s.name == name for f in out.file for s in f.service):
            continue
        file = out.file.add()
        file.name = f"{package.replace('.', '/')}/{name.lower()}_service.proto"
        file.package = package
        file.syntax = "proto3"
        service = file.service.add()
        service.name = name
        for rpc, request, response, streams in rpcs:
            method = service.method.add()
            method.name = rpc
            method.input_type = f".{request}"
            method.output_type = f".{response}"
            method.server_streaming = streams
            for used in (request, response):
                if used not in home:
                    sys.exit(f"no descriptor of {used}, which {name}.{rpc} uses")
                if home[used] not in file.dependency:
                    file.dependency.append(home[used])
    found = {f"{f.package}.{s.name}" for f in out.file for s in f.service}
    data = out.SerializeToString(deterministic=True)
    with open(sys.argv[1], "wb") as f:
        f.write(data)
    print(f"{len(out.file)} files, {len(data)} bytes, services: {', '.join(sorted(found))}")


if __name__ == "__main__":
    main()
