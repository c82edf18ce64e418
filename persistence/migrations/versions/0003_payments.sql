alter table orders add column withdrawn boolean default false not null;

alter table attempts
    add column look_up_at_s bigint,
    add column asked_by text,
    add column request_fingerprint text,
    drop constraint ck_attempts_status,
    add constraint ck_attempts_status
        check (status in ('frozen', 'open', 'closing', 'unpaid', 'paid', 'expired', 'failed'));
update attempts set look_up_at_s = session_expires_at_s;
create index ix_attempts_asked_by on attempts (asked_by) where asked_by is not null;
create index ix_attempts_look_up_at_s on attempts (look_up_at_s)
    where status in ('frozen', 'open', 'unpaid', 'closing');

alter table payments
    add column refunded_minor bigint default 0 not null,
    drop constraint ck_payments_status,
    add constraint ck_payments_status check (status in ('kept', 'refund_owed', 'refunded', 'flagged')),
    drop constraint ck_payments_not_negative,
    add constraint ck_payments_not_negative check (amount_minor >= 0 and refunded_minor >= 0),
    add constraint ck_payments_refunded_minor check (refunded_minor <= amount_minor);

alter table settlements
    drop constraint ck_settlements_kind,
    add constraint ck_settlements_kind check (kind in ('complete', 'release', 'cancel', 'hold'));

create table refunds (
    id text default replace((gen_random_uuid())::text, '-'::text, ''::text) not null,
    tenant text not null,
    order_id text,
    payment_id text not null,
    cause text not null,
    request_id text,
    reason text default '' not null,
    amount_minor bigint not null,
    currency text not null,
    status text not null,
    round integer default 1 not null,
    claim text,
    claimed_at timestamptz,
    called_at timestamptz,
    next_try_at timestamptz default now() not null,
    tries bigint default 0 not null,
    last_error text,
    created_at timestamptz default now() not null,
    refunded_at timestamptz,
    constraint pk_refunds primary key (id),
    constraint ck_refunds_status check (status in ('owed', 'requesting', 'pending', 'refunded')),
    constraint ck_refunds_cause check (cause in ('requested', 'cancelled', 'duplicate', 'late', 'mismatched')),
    constraint ck_refunds_amount_minor check (amount_minor > 0),
    constraint ck_refunds_request_id check ((cause = 'requested') = (request_id is not null)),
    constraint ck_refunds_claim check ((claim is not null) = (status = 'requesting')),
    constraint uq_refunds_order_id_request_id unique (order_id, request_id),
    constraint fk_refunds_order_id_orders foreign key(order_id) references orders (id),
    constraint fk_refunds_payment_id_payments foreign key(payment_id) references payments (id)
);
create index ix_refunds_payment_id on refunds (payment_id);
create index ix_refunds_order_id on refunds (order_id);
create index ix_refunds_next_try_at on refunds (next_try_at) where status <> 'refunded';

create table provider_refunds (
    provider text not null,
    ref text not null,
    alias text,
    payment_ref text not null,
    refund_id text,
    round integer,
    amount_minor bigint not null,
    currency text not null,
    status text not null,
    reason text,
    counted boolean default false not null,
    first_seen_at timestamptz default now() not null,
    constraint pk_provider_refunds primary key (provider, ref),
    constraint ck_provider_refunds_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_provider_refunds_status check (status in ('pending', 'succeeded', 'failed')),
    constraint ck_provider_refunds_not_negative check (amount_minor >= 0),
    constraint fk_provider_refunds_refund_id_refunds foreign key(refund_id) references refunds (id)
);
create index ix_provider_refunds_provider_payment_ref on provider_refunds (provider, payment_ref);
create index ix_provider_refunds_refund_id on provider_refunds (refund_id);
create index ix_provider_refunds_first_seen_at on provider_refunds (first_seen_at) where not counted;

create table refund_totals (
    provider text not null,
    payment_ref text not null,
    total_minor bigint not null,
    currency text not null,
    counted boolean default false not null,
    first_seen_at timestamptz default now() not null,
    constraint pk_refund_totals primary key (provider, payment_ref),
    constraint ck_refund_totals_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_refund_totals_not_negative check (total_minor >= 0)
);
create index ix_refund_totals_first_seen_at on refund_totals (first_seen_at) where not counted;

create table disputes (
    provider text not null,
    ref text not null,
    payment_ref text not null,
    amount_minor bigint not null,
    currency text not null,
    status text not null,
    reason text,
    is_closed boolean default false not null,
    counted boolean default false not null,
    first_seen_at timestamptz default now() not null,
    constraint pk_disputes primary key (provider, ref),
    constraint ck_disputes_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_disputes_not_negative check (amount_minor >= 0)
);
create index ix_disputes_provider_payment_ref on disputes (provider, payment_ref);
create index ix_disputes_first_seen_at on disputes (first_seen_at) where not counted;

-- Payments owed back before there was a ledger.
insert into refunds (tenant, order_id, payment_id, cause, amount_minor, currency, status)
select p.tenant, p.order_id, p.id,
    case s.state when 'mismatched' then 'mismatched' else case s.outcome
        when 'duplicate_payment' then 'duplicate' when 'refund_due' then 'late' else 'cancelled' end end,
    p.amount_minor, p.currency, 'owed'
from payments p left join settlements s on s.id = p.settlement_id
where p.status = 'refund_owed' and p.amount_minor > 0;
