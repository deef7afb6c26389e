#!/bin/sh
# The refund as a shell script. Each `stepfence exec` does one step by a command, or prints its recorded result. When a command of stepfence ends
# with 75, 76 or 77, so does the script, and the operator knows what that means.
set -eu
call="python $(dirname "$0")/call.py"

order=$(stepfence input order)
# shellcheck disable=SC2086
found=$(stepfence exec --step lookup-order --action Read -- $call GET "/orders/$order")
amount=$(printf '%s' "$found" | python -c 'import json, sys; print(json.load(sys.stdin)["amount"])')
customer=$(printf '%s' "$found" | python -c 'import json, sys; print(json.load(sys.stdin)["customer"])')

# shellcheck disable=SC2086
refund=$(stepfence exec --step refund --action Payment --not-applied-exit 65 \
    --payload "{\"order\": \"$order\", \"amount\": $amount}" -- $call POST /refunds)

# shellcheck disable=SC2086
stepfence exec --step notify --action Create --not-applied-exit 65 \
    --payload "{\"to\": \"$customer\", \"text\": \"We paid back order $order.\"}" -- $call POST /notifications >/dev/null

printf '%s' "$refund" | stepfence finish --result -
