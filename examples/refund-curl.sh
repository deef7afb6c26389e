#!/bin/sh
# Pay an order back, by curl. Killed anywhere and started again, it pays nothing twice behind your back.
set -eu
wanted=$(stepfence input) # {"order": "4711", "amount": 4200}
# curl ends with 6 (unknown host) or 7 (no connection) before it sends anything. After any other code but 0 nobody knows: a person is asked.
refund=$(stepfence exec --step refund --action Payment --not-applied-exit 6,7 --payload "$wanted" -- sh -c '
    curl -qfsSL --max-redirs 0 -H "Idempotency-Key: $STEPFENCE_KEY" -H "Content-Type: application/json" \
        -d "$STEPFENCE_PAYLOAD" "$PROVIDER_URL/refunds"')
printf 'paid back: %s\n' "$refund"
printf '%s' "$refund" | stepfence finish --result -
