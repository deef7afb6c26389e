"""The stored JSON of an AgentRun to and from the core's values, and nowhere else."""

from stepfence.schema.decode import Unreadable, decode
from stepfence.schema.encode import carry, encode_status
from stepfence.schema.names import (
    CONTAINER_ANNOTATION,
    GATEWAY_CA_ANNOTATION,
    GROUP,
    IDENTITY_ANNOTATION,
    PLURAL,
    PRESTOP_ANNOTATION,
    PRESTOP_COMMAND_ANNOTATION,
    PUT_AT_ANNOTATION,
    RECORD_PLURAL,
    RUN_LABEL,
    RUN_UID_LABEL,
    TOKEN_AUDIENCE,
    VERSION,
    WORKER_LABEL,
    identity_record_name,
    job_name,
    record_name,
)

__all__ = [
    "CONTAINER_ANNOTATION",
    "GATEWAY_CA_ANNOTATION",
    "GROUP",
    "IDENTITY_ANNOTATION",
    "PLURAL",
    "PRESTOP_ANNOTATION",
    "PRESTOP_COMMAND_ANNOTATION",
    "PUT_AT_ANNOTATION",
    "RECORD_PLURAL",
    "RUN_LABEL",
    "RUN_UID_LABEL",
    "TOKEN_AUDIENCE",
    "VERSION",
    "WORKER_LABEL",
    "Unreadable",
    "carry",
    "decode",
    "encode_status",
    "identity_record_name",
    "job_name",
    "record_name",
]
