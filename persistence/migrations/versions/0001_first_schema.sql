-- The first schema, frozen: later changes are migrations of their own.
-- What tables and columns mean is said in persistence/tables/.

create sequence definition_rev;

create sequence redis_epoch;

create table tenants (
    id text not null,
    created_at timestamptz default now() not null,
    constraint pk_tenants primary key (id)
);

create table api_keys (
    id text not null,
    tenant text,
    name text not null,
    key_hash text not null,
    scopes text[] not null,
    created_at timestamptz default now() not null,
    revoked_at timestamptz,
    constraint pk_api_keys primary key (id),
    constraint ck_api_keys_scopes check (scopes <@ array['read', 'checkout', 'settle', 'admin']::text[] and cardinality(scopes) > 0),
    constraint uq_api_keys_key_hash unique (key_hash)
);

create table pools (
    tenant text not null,
    id text not null,
    cap bigint,
    rev bigint not null,
    pushed_rev bigint default 0 not null,
    opens_at_ms bigint,
    closes_at_ms bigint,
    status text not null,
    per_customer integer,
    late_payment text not null,
    updated_at timestamptz default now() not null,
    constraint pk_pools primary key (tenant, id),
    constraint ck_pools_status check (status in ('active', 'paused', 'closed')),
    constraint ck_pools_late_payment check (late_payment in ('honour', 'refund_if_full', 'refund')),
    constraint ck_pools_cap check (cap between 0 and 1000000000000),
    constraint ck_pools_per_customer check (per_customer between 1 and 1000),
    constraint ck_pools_rev check (rev > 0 and pushed_rev >= 0),
    constraint fk_pools_tenant_tenants foreign key(tenant) references tenants (id)
);
create index ix_pools_tenant_id on pools (tenant, id) where pushed_rev < rev;

create table codes (
    tenant text not null,
    code text not null,
    cap bigint,
    period jsonb not null,
    discount jsonb not null,
    per_customer integer,
    opens_at_ms bigint,
    closes_at_ms bigint,
    products text[],
    late_payment text not null,
    rev bigint not null,
    constraint pk_codes primary key (tenant, code),
    constraint ck_codes_late_payment check (late_payment in ('honour', 'refund_if_full', 'refund')),
    constraint ck_codes_cap check (cap between 0 and 1000000000000),
    constraint ck_codes_per_customer check (per_customer between 1 and 1000),
    constraint ck_codes_upper_case check (code = upper(code)),
    constraint fk_codes_tenant_tenants foreign key(tenant) references tenants (id)
);

create table products (
    tenant text not null,
    id text not null,
    name text not null,
    amount_minor bigint not null,
    currency text not null,
    recurring jsonb,
    rev bigint not null,
    constraint pk_products primary key (tenant, id),
    constraint ck_products_not_negative check (amount_minor >= 0),
    constraint fk_products_tenant_tenants foreign key(tenant) references tenants (id)
);

create table reservations (
    tenant text not null,
    id text not null,
    status text not null,
    version integer not null,
    created_at_ms bigint not null,
    expires_at_ms bigint not null,
    completed_at_ms bigint,
    ended_at_ms bigint,
    late boolean default false not null,
    over_cap bigint default 0 not null,
    restocked boolean default false not null,
    ttl_ms bigint not null,
    fingerprint text not null,
    payment_ref text default '' not null,
    refused_payments text[] default '{}' not null,
    customer text,
    metadata json not null,
    order_id text default '' not null,
    code text default '' not null,
    period text default '' not null,
    constraint pk_reservations primary key (tenant, id),
    constraint ck_reservations_status check (status in ('reserved', 'completed', 'released', 'cancelled')),
    constraint ck_reservations_not_negative check (over_cap >= 0),
    constraint ck_reservations_version check (version > 0),
    constraint ck_reservations_completed_at check (status <> 'completed' or completed_at_ms is not null)
);
create index ix_reservations_status_expires_at_ms on reservations (status, expires_at_ms);
create index ix_reservations_tenant_code_period on reservations (tenant, code, period) where code <> '';
create index ix_reservations_tenant_customer on reservations (tenant, customer) where customer is not null;

create table reservation_claims (
    tenant text not null,
    reservation_id text not null,
    position integer not null,
    pool text not null,
    quantity bigint not null,
    counted boolean default false not null,
    constraint pk_reservation_claims primary key (tenant, reservation_id, position),
    constraint fk_reservation_claims_tenant_reservation_id_reservations foreign key(tenant, reservation_id) references reservations (tenant, id) on delete cascade,
    constraint ck_reservation_claims_quantity check (quantity > 0)
);
create index ix_reservation_claims_tenant_pool on reservation_claims (tenant, pool);

create table orders (
    id text not null,
    tenant text not null,
    reservation_id text,
    customer text not null,
    email text not null,
    code text default '' not null,
    period text default '' not null,
    currency text not null,
    amount_minor bigint not null,
    discount_minor bigint default 0 not null,
    refunded_minor bigint default 0 not null,
    status text not null,
    late boolean default false not null,
    provider text not null,
    idempotency_key text,
    request_fingerprint text not null,
    success_url text not null,
    cancel_url text not null,
    created_at timestamptz default now() not null,
    expires_at_ms bigint,
    constraint pk_orders primary key (id),
    constraint ck_orders_status check (status in ('pending', 'paid', 'confirmed', 'cancelled', 'refunded')),
    constraint ck_orders_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_orders_not_negative check (amount_minor >= 0 and discount_minor >= 0 and refunded_minor >= 0),
    constraint uq_orders_tenant_idempotency_key unique (tenant, idempotency_key)
);
create index ix_orders_tenant_created_at_id on orders (tenant, created_at, id);
create index ix_orders_tenant_customer on orders (tenant, customer);
create index ix_orders_tenant_reservation_id on orders (tenant, reservation_id) where reservation_id is not null;

create table order_lines (
    order_id text not null,
    position integer not null,
    product text not null,
    name text not null,
    quantity bigint not null,
    unit_amount_minor bigint not null,
    amount_minor bigint not null,
    constraint pk_order_lines primary key (order_id, position),
    constraint ck_order_lines_not_negative check (unit_amount_minor >= 0 and amount_minor >= 0),
    constraint ck_order_lines_quantity check (quantity > 0),
    constraint fk_order_lines_order_id_orders foreign key(order_id) references orders (id) on delete cascade
);

create table order_history (
    id bigint generated by default as identity,
    order_id text not null,
    at timestamptz default now() not null,
    event text not null,
    details jsonb default '{}' not null,
    settlement_id text,
    constraint pk_order_history primary key (id),
    constraint uq_order_history_order_id_event_settlement_id unique (order_id, event, settlement_id),
    constraint fk_order_history_order_id_orders foreign key(order_id) references orders (id) on delete cascade
);
create index ix_order_history_order_id_id on order_history (order_id, id);

create table attempts (
    order_id text not null,
    number integer not null,
    provider text not null,
    idempotency_key text not null,
    parameters jsonb not null,
    status text not null,
    session_id text,
    url text,
    session_expires_at_s bigint,
    created_at timestamptz default now() not null,
    opened_at timestamptz,
    constraint pk_attempts primary key (order_id, number),
    constraint ck_attempts_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_attempts_status check (status in ('frozen', 'open', 'paid', 'expired', 'failed')),
    constraint ck_attempts_number check (number > 0),
    constraint uq_attempts_idempotency_key unique (idempotency_key),
    constraint uq_attempts_provider_session_id unique (provider, session_id),
    constraint fk_attempts_order_id_orders foreign key(order_id) references orders (id) on delete cascade
);
create index ix_attempts_status_created_at on attempts (status, created_at);

create table payments (
    id text default replace((gen_random_uuid())::text, '-'::text, ''::text) not null,
    tenant text not null,
    order_id text,
    provider text not null,
    ref text not null,
    amount_minor bigint not null,
    currency text not null,
    status text not null,
    settlement_id text,
    created_at timestamptz default now() not null,
    constraint pk_payments primary key (id),
    constraint ck_payments_status check (status in ('kept', 'refund_owed', 'refunded')),
    constraint ck_payments_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_payments_not_negative check (amount_minor >= 0),
    constraint uq_payments_provider_ref unique (provider, ref),
    constraint fk_payments_order_id_orders foreign key(order_id) references orders (id)
);
create index ix_payments_created_at on payments (created_at) where status = 'refund_owed';
create index ix_payments_order_id on payments (order_id);

create table settlements (
    id text not null,
    provider text not null,
    dedup_key text not null,
    kind text not null,
    tenant text,
    reservation_id text,
    order_id text,
    session_id text,
    payment_ref text,
    amount_minor bigint,
    currency text,
    event_type text,
    record text,
    restock boolean default false not null,
    state text not null,
    outcome text,
    tries bigint default 0 not null,
    last_error text,
    received_at timestamptz default now() not null,
    applied_at timestamptz,
    constraint pk_settlements primary key (id),
    constraint ck_settlements_provider check (provider in ('stripe', 'paystack', 'api', 'none')),
    constraint ck_settlements_kind check (kind in ('complete', 'release', 'cancel')),
    constraint ck_settlements_state check (state in ('stored', 'applied', 'unmatched', 'mismatched')),
    constraint ck_settlements_not_negative check (amount_minor >= 0),
    constraint uq_settlements_provider_dedup_key unique (provider, dedup_key)
);
create index ix_settlements_order_id on settlements (order_id);
create index ix_settlements_provider_session_id on settlements (provider, session_id);
create index ix_settlements_state_received_at on settlements (state, received_at) where state in ('stored', 'unmatched');
create index ix_settlements_tenant_reservation_id on settlements (tenant, reservation_id);

create table redis_epochs (
    epoch bigint not null,
    server text not null,
    run_id text not null,
    replication_id text not null,
    build integer not null,
    reason text not null,
    begun_at timestamptz default now() not null,
    admitted_at timestamptz,
    constraint pk_redis_epochs primary key (epoch),
    constraint ck_redis_epochs_positive check (epoch > 0 and build > 0)
);

create table outbox_offsets (
    partition integer not null,
    epoch bigint not null,
    seq bigint not null,
    constraint pk_outbox_offsets primary key (partition),
    constraint ck_outbox_offsets_not_negative check (partition >= 0 and epoch >= 0 and seq >= 0)
);

create table set_aside_entries (
    id bigint generated by default as identity,
    partition integer not null,
    epoch bigint not null,
    seq bigint not null,
    fields jsonb not null,
    reason text not null,
    at timestamptz default now() not null,
    resolved_at timestamptz,
    constraint pk_set_aside_entries primary key (id),
    constraint uq_set_aside_entries_partition_epoch_seq unique (partition, epoch, seq)
);

create table job_runs (
    job text not null,
    period_seconds integer,
    last_started_at timestamptz,
    last_success_at timestamptz,
    last_error text,
    last_error_at timestamptz,
    failures bigint default 0 not null,
    details jsonb default '{}' not null,
    constraint pk_job_runs primary key (job)
);

create view redemptions as
select tenant, code, period, customer, id as reservation_id, order_id,
       timestamptz 'epoch' + completed_at_ms * interval '1 millisecond' as completed_at
from reservations
where status = 'completed' and code <> '';
