-- name: queues
-- The queues of domains, or of all, in the order in which they are read, with what statements need to
-- know about them; and whether this transaction, which can be undone, may have created one.
select q.queue_id, q.queue, q.domain, q.priority, q.replies, q.mapping,
    pg_get_serial_sequence(format('pgmq.%I', lower('q_' || q.queue)), 'msg_id'),
    $2::text = '' or pg_current_xact_id_if_assigned() is not null
from commandbus.pgmq_queue q
where ($1::text is null or q.domain = any ($1::text::text[]))
    and to_regclass(format('pgmq.%I', lower('q_' || q.queue))) is not null
order by q.domain, q.priority, q.replies desc, q.queue_id

-- name: notified
-- Queues that have no trigger of ours, but notifications of PGMQ's own, with their throttle.
select q.queue, q.domain, coalesce((select t.throttle_interval_ms from pgmq.notify_insert_throttle t
    where t.queue_name = q.queue), 0) / 1000.0::float8
from commandbus.pgmq_queue q
where q.domain = any ($1::text::text[])
    and exists (select 1 from pg_trigger t
        where t.tgrelid = to_regclass(format('pgmq.%I', lower('q_' || q.queue)))
            and t.tgname = 'trigger_notify_queue_insert_listeners')
    and not exists (select 1 from pg_trigger t
        where t.tgrelid = to_regclass(format('pgmq.%I', lower('q_' || q.queue)))
            and t.tgname = 'commandbus_tell')

-- name: bind
select commandbus.pgmq_bind($1::text, $2::bigint::integer, $3::boolean)

-- name: adopt
select commandbus.pgmq_adopt($1::text, $2::text, $3::bigint::integer, $4::text)

-- name: is_queue
select to_regclass(format('pgmq.%I', lower('q_' || $1::text))) is not null,
    (select domain from commandbus.pgmq_queue where queue = $1::text)

-- name: put_into
-- In place of the tables of what waits: one message per new command, announced in this transaction.
announced as materialized (
    select set_config('commandbus_pgmq.announced', ' ' || string_agg(distinct domain, ' ') || ' ', true) as announced
    from new),
@each draw@,
placed as (
    insert into commandbus.pgmq_message (seq, queue_id, msg_id) @any drawn@),

-- name: draw
drawn_@queue@ as materialized (
    select n.*, nextval('@sequence@') as msg_id from (
        select * from new cross join announced
        where domain = '@domain@' and priority = @priority@
            and (command_type = '@reply@') = @replies@
        order by seq) n),
put_@queue@ as (
    insert into @table@ (msg_id, vt, message, headers) overriding system value
    select n.msg_id, 'epoch'::timestamptz + n.ready_at * '1 microsecond'::interval,
        commandbus.pgmq_envelope(n.command_id, n.domain, n.command_type, n.data,
            coalesce(n.correlation_id, n.command_id), n.causation_id, n.reply_to, n.max_attempts, n.now,
            n.expires_at, n.tags, n.batch_id),
        commandbus.pgmq_headers(n.headers::jsonb, n.seq, n.msg_id, 0, 0)
    from drawn_@queue@ n)

-- name: drawn
select seq, @queue@, msg_id from drawn_@queue@

-- name: draw_numbers
-- Numbers of messages that are to be copied, which this transaction tells of by itself.
select array(select nextval($1::text::regclass) from generate_series(1, $2::bigint)),
    set_config('commandbus_pgmq.announced', $3::text, true)

-- name: copy_messages
copy @table@ (msg_id, vt, message, headers) from stdin

-- name: copy_message_places
copy commandbus.pgmq_message (seq, queue_id, msg_id) from stdin

-- name: put
-- Messages for commands that are there already: retried by an operator, or sent before the domain was
-- on PGMQ. Without their payload they are for the bus alone, which reads it elsewhere.
with waiting as materialized (select * from {waiting} as w),
new as materialized (
    select c.*, coalesce(w.ready_at, c.due_at) as ready_at, coalesce(w.attempts, 0) as attempts,
        coalesce(w.crashes, 0) as crashes, coalesce(w.releases, 0) as releases, c.created_at as now,
        case when :with_payload::boolean then c.data else 'null' end as shown,
        case when :with_payload::boolean then c.tags end as shown_tags,
        case when :with_payload::boolean then c.headers end as shown_headers
    from waiting w cross join lateral (
        select * from commandbus.command c where c.seq = w.seq limit 1) c),
announced as materialized (
    select set_config('commandbus_pgmq.announced', ' ' || string_agg(distinct domain, ' ') || ' ', true) as announced
    from new),
@each draw_again@,
placed as (
    insert into commandbus.pgmq_message (seq, queue_id, msg_id) @any drawn@
    on conflict (seq) do update set queue_id = excluded.queue_id, msg_id = excluded.msg_id)
select count(*) from new

-- name: draw_again
drawn_@queue@ as materialized (
    select n.*, nextval('@sequence@') as msg_id from (
        select * from new cross join announced
        where domain = '@domain@' and priority = @priority@
            and (command_type = '@reply@') = @replies@
        order by seq) n),
put_@queue@ as (
    insert into @table@ (msg_id, read_ct, vt, message, headers) overriding system value
    select n.msg_id, n.attempts, 'epoch'::timestamptz + n.ready_at * '1 microsecond'::interval,
        commandbus.pgmq_envelope(n.command_id, n.domain, n.command_type, n.shown, n.correlation_id,
            n.causation_id, n.reply_to, n.max_attempts, n.now, n.expires_at, n.shown_tags, n.batch_id),
        commandbus.pgmq_headers(n.shown_headers::jsonb, n.seq, n.msg_id, n.crashes, n.releases)
    from drawn_@queue@ n)

-- name: take_over
-- What was sent without knowing of PGMQ, and is due: on its way into the queues.
with taken as (
    delete from commandbus.queue where ctid = any (array(
        select q.row_id from unnest($1::text::text[]) as wanted (domain)
        cross join lateral (
            select ctid as row_id from commandbus.queue where domain = wanted.domain
            order by priority, seq limit 1000 for update skip locked) q))
    returning *)
select t.seq, t.available_at, t.attempts, t.crashes, t.releases, t.domain, t.priority, c.command_type
from taken t cross join lateral (
    select command_type from commandbus.command c where c.seq = t.seq limit 1) c

-- name: claim
-- Takes the first visible messages of a domain's queues, in order of priority, as pgmq.read would: the
-- visibility timeout moves and the read count rises. What carries a command of ours is put under one
-- new lease; other messages come back with their text, to be made commands or to be refused. The
-- messages stay invisible a little longer than the lease, so that who takes it back is first.
-- Commands whose workers died are taken by the part `suspects_left`; without it only what was never read.
with moment as materialized (
    select commandbus.now_us() as now, clock_timestamp() as at,
        set_config('synchronous_commit', 'off', true)),
gate as materialized (
    select m.at from moment m where not exists (select 1 from commandbus.domain d
        where d.domain = :domain::text and d.paused_at is not null)),
{found} as materialized (
    select * from ({looks}) q limit :wanted::bigint),
{suspects_left}
@each read@,
carried as materialized (@any was_read@),
-- Which of their commands have ended.
doubtful as materialized (
    select {some_ended} then commandbus.ended_among(a.seqs) end as ended
    from (select min(seq) as first, max(seq) as last, array_agg(seq) as seqs from carried) a),
known as materialized (
    select t.queue_id, t.place, t.priority, t.msg_id, t.read_ct,
        case when c.seq is null then 0 else commandbus.pgmq_count(t.token ->> 2) end as crashes,
        case when c.seq is null then 0 else commandbus.pgmq_count(t.token ->> 3) end as releases,
        c.seq, c.command_type, c.command_id, c.data, c.correlation_id, c.created_at, c.expires_at,
        c.due_at, c.unique_key is not null as keyed, {c_claimed},
        coalesce(c.seq = any (d.ended), false) as ended
    from carried t cross join doubtful d left join lateral (
        select * from commandbus.command c
        where c.seq = t.seq and c.domain = :domain::text and exists (
            select 1 from commandbus.pgmq_message m
            where m.seq = t.seq and m.msg_id = t.msg_id and m.queue_id = t.queue_id) limit 1) c on true),
leased as (
    insert into commandbus.lease (domain, worker, claimed_at, until, seqs, unusual)
    select :domain::text, :worker::text, max(m.now), max(m.now) + :duration::bigint, array_agg(k.seq),
        json_object_agg(k.seq, json_build_array(k.read_ct + 1, k.crashes, k.releases, k.keyed))
            filter (where k.read_ct > 0 or k.crashes > 0 or k.releases > 0 or k.keyed)
    from known k cross join moment m where k.seq is not null and not k.ended having count(*) > 0
    returning lease_id)
select c.queue_id, c.msg_id, c.ended, c.priority, c.read_ct, c.crashes,
    case when c.seq is null then case c.queue_id @all text_of@ end end,
    c.seq, l.lease_id, m.now, c.priority, c.read_ct, c.crashes, c.releases, c.keyed,
    c.expires_at <= m.now, m.now - c.due_at, 0, c.command_type,
    c.command_id, c.data, nullif(c.correlation_id, c.command_id), c.created_at, {c_claimed}
from known c cross join moment m left join leased l on true
order by c.place, c.msg_id

-- name: suspects_left
-- As the engine's own claim leaves them. A message that became visible by time while its command is still
-- under a lease that has ended is left, too: the rescue of that lease returns it, with the crash counted.
left_out as materialized (
    select queue_id, msg_id from (
        select s.*, row_number() over line as n,
            :beside_last::boolean or coalesce(bool_or(s.last_chance) over (line rows between unbounded preceding
                and 1 preceding), false) as beside_last
        from (
            select f.*, f.crashes >= :last_chance::bigint as last_chance,
                extract(epoch from m.at - f.vt) * 1000000 as waited
            from found f cross join moment m where f.crashes > 0) s
        window line as (order by s.position, s.msg_id)) s
    where n > :suspects::bigint or waited < case
        when last_chance and beside_last then :last_apart::bigint
        when beside_last or last_chance and not (:alone::boolean and n = 1) then :apart::bigint
        else 0 end),
unrescued as materialized (
    select p.queue_id, p.msg_id from moment m
    join commandbus.lease l on l.until <= m.now
    cross join unnest(l.seqs) as s (seq)
    join commandbus.pgmq_message p on p.seq = s.seq),
taken as materialized (
    select * from found where (crashes = 0 or (queue_id, msg_id) not in (
            select queue_id, msg_id from left_out))
        and (read_ct <= 0 or (queue_id, msg_id) not in (select queue_id, msg_id from unrescued))),

-- name: looks
@any look@

-- name: look
select @queue@ as queue_id, @position@ as position, q.* from gate g cross join lateral (
    select ctid as row_id, msg_id, vt, read_ct, @crashes@ as crashes
    from @table@
    where vt <= g.at and msg_id >= (:firsts::text::bigint[])[@position@]
        and msg_id <= (:lasts::text::bigint[])[@position@]
        and (read_ct = 0 or :suspects::bigint > 0
            and (not :beside_last::boolean or vt <= g.at - :apart::bigint * '1 microsecond'::interval)
            or @crashes@ = 0)
    order by msg_id limit :wanted::bigint for update skip locked) q

-- name: fresh_looks
@any look_fresh@

-- name: look_fresh
select @queue@ as queue_id, @position@ as position, q.* from gate g cross join lateral (
    select ctid as row_id
    from @table@
    where vt <= g.at and msg_id >= (:firsts::text::bigint[])[@position@]
        and msg_id <= (:lasts::text::bigint[])[@position@] and read_ct = 0
    order by msg_id limit :wanted::bigint for update skip locked) q

-- name: read
-- The rows are locked, so each is still where it was found. A count that cannot be an attempt, because
-- others wrote it, stays within what can.
read_@queue@ as (
    update @table@ set read_ct = least(greatest(read_ct, 0), 32766) + 1, vt = (select at from gate)
        + (:duration::bigint + @grace@) * '1 microsecond'::interval@last_read@
    where ctid = any (array(select row_id from taken where queue_id = @queue@))
    returning msg_id, read_ct - 1 as read_ct, headers -> 'commandbus' as token)

-- name: was_read
-- A token counts under its own number only, and if the bus has recorded that number for its command; so
-- others cannot make one. The offset keeps it from being read again and again.
(select @queue@ as queue_id, @position@ as place, @priority@ as priority, r.*,
    case when r.token ->> 1 = r.msg_id::text and length(r.token ->> 0) between 1 and 18
        and translate(r.token ->> 0, '0123456789', '') = '' then (r.token ->> 0)::bigint end as seq
from read_@queue@ r offset 0)

-- name: text_of
when @queue@ then (select json_build_array(q.message::text, q.headers::text,
    commandbus.pgmq_moment(least(q.enqueued_at, clock_timestamp())))::text from @table@ q where q.msg_id = c.msg_id)

-- name: first_visible
-- The first messages that a claim would take, with the open commands that they carry.
select * from (@any first_in@) q limit $1::bigint

-- name: first_in
(select @queue@ as queue_id, q.msg_id, q.read_ct, m.seq from @table@ q left join lateral (
    select m.seq from commandbus.pgmq_message m
    where m.seq = case when q.headers #>> '{commandbus,0}' ~ '^[0-9]{1,18}$'
        then (q.headers #>> '{commandbus,0}')::bigint end
        and m.queue_id = @queue@ and m.msg_id = q.msg_id
        and not exists (select 1 from commandbus.outcome_of(m.seq)) limit 1) m on true
 where q.vt <= clock_timestamp() order by q.msg_id limit $1::bigint)

-- name: admit
-- Makes commands of messages that others have sent, under a lease of their own. One whose id is taken
-- is left out, and missing from the answer; so is one that was read again meanwhile.
with moment as materialized (
    select commandbus.now_us() as now, set_config('synchronous_commit', 'off', true)),
message as materialized (
    select nextval('commandbus.command_seq_seq') as seq, i.* from {messages} as i),
@each as_read_in@,
item as materialized (
    select m.* from message m where m.seq in (@any seq_as_read@)),
fresh as (
    insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,
        causation_id, reply_to, priority, max_attempts, created_at, due_at, expires_at, tags, headers)
    select seq, command_id, :domain::text, command_type, data, correlation_id, causation_id, reply_to,
        priority, max_attempts, created_at, created_at, expires_at, tags, headers
    from item order by seq
    on conflict do nothing returning seq),
new as materialized (select i.* from item i where i.seq in (select seq from fresh)),
placed as (
    insert into commandbus.pgmq_message (seq, queue_id, msg_id) select seq, queue_id, msg_id from new),
@each mark@,
leased as (
    insert into commandbus.lease (domain, worker, claimed_at, until, seqs, unusual)
    select :domain::text, :worker::text, max(m.now), max(m.now) + :duration::bigint, array_agg(n.seq),
        json_object_agg(n.seq, json_build_array(n.read_ct, 0, 0, false)) filter (where n.read_ct > 1)
    from new n cross join moment m having count(*) > 0 returning lease_id)
select n.queue_id, n.msg_id, n.seq, l.lease_id, m.now
from new n cross join leased l cross join moment m order by n.seq

-- name: mark
marked_@queue@ as (
    update @table@ q set headers = commandbus.pgmq_headers(
        case when jsonb_typeof(q.headers) = 'object' then q.headers end,
        (select n.seq from new n where n.queue_id = @queue@ and n.msg_id = q.msg_id), q.msg_id, 0, 0)
    where q.msg_id = any (array(select msg_id from new where queue_id = @queue@)))

-- name: refuse
-- To the archive with messages that are no commands, with the reason among their headers.
with item as materialized (
    select * from unnest($1::text::integer[], $2::text::bigint[], $3::text::integer[], $4::text::text[])
        as i (queue_id, msg_id, read_ct, reason)),
counted as (
    insert into commandbus.tally (domain, status, n)
    select $5::text, 'REFUSED', count(*) from item having count(*) > 0),
@each refused@
select count(*) from item

-- name: refused
gone_@queue@ as (
    delete from @table@ where msg_id = any (array(select msg_id from item where queue_id = @queue@))
        and (msg_id, read_ct) in (select msg_id, read_ct from item where queue_id = @queue@)
    returning *),
filed_@queue@ as (
    insert into @archive@ (@columns@, headers)
    select @columns@, case when jsonb_typeof(g.headers) = 'object' then g.headers else '{}' end
        || jsonb_build_object('commandbus_refused',
            (select i.reason from item i where i.queue_id = @queue@ and i.msg_id = g.msg_id))
    from gone_@queue@ g on conflict do nothing)

-- name: before_proof
-- Before a settle believes in a lease: each of its messages must be as this lease read it, and stays so.
message as materialized (
    select * from {fates} as w),
@all held@
held as materialized (select 0::bigint as proof, 0::bigint as seq where false @all held_all@),
unfit as materialized (
    select proof from (
        select proof, 1 as wanted from message where proof <> 0
        union all select proof, -1 from held) both_sides
    group by proof having sum(wanted) > 0),

-- name: held
-- Where all counts are the same, the writes below check it for themselves, and spare the locks.
held_@queue@ as materialized (
    select w.proof, w.seq, w.msg_id, w.fate from message w cross join lateral (
        select 1 from @table@ q where q.msg_id = w.msg_id and q.read_ct = w.read_ct limit 1 {lock}) q
    where w.queue_id = @queue@),

-- name: held_all
union all select proof, seq from held_@queue@

-- name: quick_places
-- Where all messages have the same read count and are to be deleted: the deletes check it for
-- themselves, and if one of them, or a lease, is not as expected, the statement is undone as a whole.
@each deleted@,

-- name: deleted
deleted_@queue@ as (
    delete from @table@ where msg_id = any (((:deleted::text::text[])[@position@])::bigint[])
        and read_ct = :read_count::bigint::integer
    returning 1)

-- name: quick_end
and commandbus.pgmq_insist((select count(*) from proof) = :leases::bigint
    and :messages::bigint = (@sum deleted_count@))

-- name: deleted_count
(select count(*) from deleted_@queue@)

-- name: instead_of_places
-- What messages that go back get, by sequence: a join of these lists has no index, and no figures for the
-- planner, so it would compare each with each.
going_back as materialized (
    select jsonb_object_agg(seq, jsonb_build_array(now + delay, attempts, crashes, releases)) as by_seq
    from back),
@all moved@

-- name: moved
deleted_@queue@ as (
    delete from @table@ where msg_id = any (array(
        select msg_id from held_@queue@
        where fate = 0 and proof in (select lease_id from proof)))
        and read_ct = any (array(select distinct read_ct from message))),
gone_@queue@ as (
    delete from @table@ where msg_id = any (array(
        select msg_id from held_@queue@
        where fate = 1 and proof in (select lease_id from proof)))
        and read_ct = any (array(select distinct read_ct from message))
    returning *),
filed_@queue@ as (
    insert into @archive@ (@columns@, headers) select @columns@, headers from gone_@queue@
    on conflict do nothing),
seqs_@queue@ as materialized (
    select jsonb_object_agg(msg_id, seq) as by_msg_id from held_@queue@
    where fate = 2 and proof in (select lease_id from proof)),
returned_@queue@ as (
    update @table@ q set (vt, read_ct, headers) = (
        select 'epoch'::timestamptz + (b.back ->> 0)::bigint * '1 microsecond'::interval,
            (b.back ->> 1)::integer, commandbus.pgmq_headers(
                q.headers, b.seq::bigint, q.msg_id, (b.back ->> 2)::integer, (b.back ->> 3)::integer)
        from (select h.seq, (select by_seq from going_back) -> h.seq as back from (
            select (select by_msg_id from seqs_@queue@) ->> q.msg_id::text as seq) h) b)
    where q.msg_id = any (array(
        select h.msg_id from held_@queue@ h
        where h.fate = 2 and h.proof in (select lease_id from proof)))
        and q.read_ct = any (array(select distinct read_ct from message))),

-- name: renew
-- Messages of commands that have left the lease meanwhile are not prolonged: one that waits for its next
-- attempt has the same read count.
with moment as materialized (
    select commandbus.now_us() as now, clock_timestamp() as at,
        set_config('synchronous_commit', 'off', true)),
valid as materialized (
    select lease_id from commandbus.lease
    where lease_id = any (:leases::text::bigint[]) and until > (select now from moment)
    order by lease_id for update),
renewed as (
    update commandbus.lease l set until = greatest(l.until, m.now + :duration::bigint)
    from valid v, moment m where l.lease_id = v.lease_id
    returning l.lease_id, l.seqs),
message as materialized (
    select w.* from {members} as w
    join (select lease_id, unnest(seqs) as seq from renewed) r using (lease_id, seq)),
@each prolong@
select lease_id from renewed

-- name: prolong
held_@queue@ as materialized (
    select w.msg_id from message w cross join lateral (
        select 1 from @table@ q where q.msg_id = w.msg_id and q.read_ct = w.read_ct limit 1 for update) q
    where w.queue_id = @queue@),
prolonged_@queue@ as (
    update @table@ set vt = greatest(vt, (select at from moment)
        + (:duration::bigint + @grace@) * '1 microsecond'::interval)
    where msg_id = any (array(select msg_id from held_@queue@)))

-- name: places
select seq, queue_id, msg_id from commandbus.pgmq_message where seq = any ($1::text::bigint[])

-- name: standing
select least(greatest(read_ct, 0), 32767), commandbus.pgmq_count(headers #>> '{commandbus,2}')
from @table@ where msg_id = $1::bigint and headers #>> '{commandbus,1}' = msg_id::text for update

-- name: set_moment
-- The same message, so that it keeps its place among those of its priority.
update @table@ set vt = 'epoch'::timestamptz + $2::bigint * '1 microsecond'::interval
where msg_id = $1::bigint returning msg_id

-- name: take_out
delete from @table@ where msg_id = $1::bigint
returning least(greatest(read_ct, 0), 32767), commandbus.pgmq_count(headers #>> '{commandbus,2}'),
    commandbus.pgmq_count(headers #>> '{commandbus,3}'), commandbus.pgmq_moment(vt)

-- name: as_read
-- The messages that still have the read count of a lease, locked.
with message as materialized (
    select * from unnest($1::text::bigint[], $2::text::integer[], $3::text::bigint[],
        $4::text::integer[]) as w (seq, queue_id, msg_id, read_ct)),
@each as_read_in@
@any seq_as_read@

-- name: as_read_in
held_@queue@ as materialized (
    select w.seq from message w cross join lateral (
        select 1 from @table@ q where q.msg_id = w.msg_id and q.read_ct = w.read_ct limit 1 for update) q
    where w.queue_id = @queue@)

-- name: seq_as_read
select seq from held_@queue@

-- name: gone
-- Open commands that wait nowhere, run under no lease but this one and have no message: all asked of
-- one snapshot, because an outcome and the end of its message are written together. Queues beside $3
-- are not looked into, and count as having it.
select c.seq, (select l.until from commandbus.lease l where l.lease_id = $2::bigint), c.command_id,
    c.domain, c.priority, c.command_type
from unnest($1::text::bigint[]) as w (seq)
cross join lateral (select * from commandbus.command c where c.seq = w.seq limit 1) c
left join commandbus.pgmq_message m on m.seq = w.seq
where not exists (select 1 from commandbus.outcome_of(w.seq))
    and w.seq not in (
        select unnest(l.seqs) from commandbus.lease l where l.lease_id <> $2::bigint)
    and not exists (select 1 from commandbus.queue q
        where q.domain = c.domain and q.priority = c.priority and q.seq = w.seq)
    and not exists (select 1 from commandbus.scheduled s where s.seq = w.seq)
    and not exists (select 1 from commandbus.pgmq_queue p
        where p.queue_id = m.queue_id and p.queue_id <> all ($3::text::integer[])
            and to_regclass(format('pgmq.%I', lower('q_' || p.queue))) is not null)
    @all gone_from@

-- name: gone_from
and not exists (select 1 from @table@ q where m.queue_id = @queue@ and q.msg_id = m.msg_id)

-- name: open_piece
-- Of a piece of all commands, in order of sequence: the last, the first that is open, and the open ones
-- of these domains.
with piece as materialized (
    select m.seq from commandbus.pgmq_message m where m.seq > $1::bigint order by m.seq limit $2::bigint),
unended as materialized (
    select p.seq from piece p
    where not exists (select 1 from commandbus.outcome_of(p.seq)))
select (select max(seq) from piece), (select min(seq) from unended), array(
    select u.seq from unended u cross join lateral (
        select c.domain from commandbus.command c where c.seq = u.seq limit 1) c
    where c.domain = any ($3::text::text[]) order by u.seq)

-- name: is_leased
select exists (select 1 from commandbus.lease where $1::bigint = any (seqs))

-- name: waiting
@any waiting_in@

-- name: waiting_in
select w.seq, q.read_ct, commandbus.pgmq_count(q.headers #>> '{commandbus,2}')::bigint,
    commandbus.pgmq_moment(q.vt)
from unnest($1::text::bigint[], $2::text::integer[], $3::text::bigint[]) as w (seq, queue_id, msg_id)
cross join lateral (select * from @table@ q where q.msg_id = w.msg_id limit 1) q
where w.queue_id = @queue@

-- name: next_moment
select (select min(moment) from (
    select min(until) - m.now from commandbus.lease where worker <> $1::text
    union all @any next_of@) as x (moment))::bigint
from (select commandbus.now_us() as now, clock_timestamp() as at) m

-- name: next_of
select case when q.first <= m.at then 50000 else extract(epoch from least(q.first, m.at + '1 day') - m.at) * 1000000 end
from (select min(vt) as first from (
    select vt from @table@ order by msg_id limit 2147483647) q) q
where not exists (select 1 from commandbus.domain d
    where d.domain = '@domain@' and d.paused_at is not null)

-- name: count_pending
-- What is under lease is in the queues, too, and does not wait.
select greatest(0, (@sum count_of@) - r.running) from (
    select coalesce(sum(cardinality(seqs)), 0)::bigint as running from commandbus.lease
    where domain = $1::text) r

-- name: count_of
(select count(*) from (select 1 from @table@ limit $2::bigint + r.running) q)

-- name: stats
with moment as materialized (select commandbus.now_us() as now, clock_timestamp() as at),
queue as materialized (@any stats_of@),
lease as (
    select coalesce(sum(cardinality(seqs)), 0)::bigint as running from commandbus.lease
    where domain = $1::text)
select m.now, q.ready, greatest(0, q.total - q.ready - l.running), 0, l.running,
    commandbus.pgmq_moment(q.oldest), null::bigint, d.paused_at, d.paused_reason
from moment m cross join lease l
cross join (select coalesce(sum(total), 0)::bigint as total, coalesce(sum(ready), 0)::bigint as ready,
    min(oldest) as oldest from queue) q
left join commandbus.domain d on d.domain = $1::text

-- name: stats_of
select count(*) as total, count(*) filter (where vt <= m.at) as ready,
    min(vt) filter (where vt <= m.at) as oldest
from @table@ cross join moment m

-- name: ahead
select least($1::bigint, @sum ahead_of@)

-- name: ahead_of
(select count(*) from (select 1 from @table@
    where vt <= clock_timestamp() and msg_id < ($2::text::bigint[])[@position@] limit $1::bigint) q)

-- name: empty
delete from @table@

-- name: erase_archived
-- A message that ended by other ways than work is kept in the archive, payload and all.
delete from @archive@
where headers -> 'commandbus' ->> 0 = any ($1::text::text[])

-- name: few_waiting
-- Running commands are among them; their lease tells them apart.
select seq from (@any waiting_seqs@) w (seq) limit $1::bigint

-- name: waiting_seqs
(select m.seq from @table@ q cross join lateral (
    select m.seq from commandbus.pgmq_message m
    where m.seq = case when q.headers #>> '{commandbus,0}' ~ '^[0-9]{1,18}$'
        then (q.headers #>> '{commandbus,0}')::bigint end
        and m.queue_id = @queue@ and m.msg_id = q.msg_id limit 1) m limit $1::bigint)

-- name: forget_pruned
-- Where the messages of commands were that are gone: of a piece of all, in order of sequence.
delete from commandbus.pgmq_message where seq in (
    select m.seq from commandbus.pgmq_message m
    where m.seq > $1::bigint and m.seq <= $2::bigint
        and not exists (select 1 from commandbus.command c where c.seq = m.seq))
