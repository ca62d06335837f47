-- name: claim
-- Takes the first rows of one partition, which is a domain, or the part of it that requires certain tags,
-- in ranges of the index that skip what was taken before, and puts them under one new lease. The lateral
-- subqueries with limits leave the planner no choice: each range is a walk along the primary key, each
-- command a look-up by its own. The rows are locked before the limit counts them, and deleted by their
-- row id. A claim may commit asynchronously: one that is lost in a crash only gives the work out again.
-- A row whose command has ended, which only another program can have written, comes without a type and is
-- dropped.
-- Commands whose workers died are taken by the parts `suspects`; without them none are. What is put under
-- lease is a part, too: `chains` where groups may wait, `no_chains` where none do.
with moment as materialized (
    select commandbus.now_us() as now, set_config('synchronous_commit', 'off', true)),
{found} as materialized (
    select q.* from moment m
    cross join {ranges} as r
    cross join lateral (
        select ctid as row_id, priority, seq, attempts, crashes, releases, keyed, available_at
        from commandbus.queue
        where domain = :partition::text
            and (priority, seq) >= (r.from_priority, r.from_seq)
            and (priority, seq) < (r.to_priority, r.to_seq)
            and (crashes = 0 {suspects_found})
        order by priority, seq limit :wanted::bigint for update skip locked) q
    where not exists (select 1 from commandbus.domain d
        where d.domain = :domain::text and d.paused_at is not null)
    limit :wanted::bigint),
{suspects_left}
gone as (
    delete from commandbus.queue where ctid = any (array(select row_id from taken))),
{under_lease}

-- name: chains
-- Behind those that hold the only permit of a group up to `followers` members of such groups come along in
-- all, `chain` of one; nothing else can let them pass. Not where a further gate or tags decide; nor behind
-- one whose worker died, nor such a one itself, nor what comes after it.
ahead as materialized (
    select t.seq, s.gate, least(:chain::bigint, :followers::bigint / count(*) over ()) as most
    from taken t cross join lateral (
        select gate from commandbus.permit s where s.seq = t.seq and s.gate like 'k:%' limit 1) s
    where :followers::bigint > 0 and t.keyed and t.crashes = 0
        and not exists (select 1 from commandbus.permit x
            where x.domain = :domain::text and x.gate = s.gate and x.seq <> t.seq)
        and not exists (select 1 from commandbus.limit_rule r where r.domain = :domain::text and r.gate <> 's')
        and not exists (select 1 from commandbus.partition p where p.domain = :domain::text)),
behind as materialized (
    select f.*, l.seq as leader from ahead l
    cross join lateral (select array(
        select h.seq from commandbus.held h where h.domain = :domain::text and h.gate = l.gate
        order by h.priority, h.seq limit l.most) as seqs offset 0) line
    cross join lateral (
        select h.*, count(*) over line as position,
            count(*) filter (where h.crashes > 0) over line as suspects
        from (
            select ctid as row_id, priority, seq, attempts, crashes, releases, true as keyed
            from commandbus.held h where h.domain = :domain::text and h.gate = l.gate
            order by h.priority, h.seq limit l.most for update skip locked) h
        window line as (order by h.priority, h.seq)) f
    -- Up to one that another transaction has locked, and may yet release.
    where f.suspects = 0 and f.seq = line.seqs[f.position]),
not_held as (
    delete from commandbus.held where ctid = any (array(select row_id from behind))),
member as materialized (
    select priority, seq, attempts, crashes, releases, keyed, 0 as position, 0 as leader from taken
    union all
    select priority, seq, attempts, crashes, releases, keyed, position, leader from behind),
-- Where all of them are keyed, the lease notes it once, under the number 0.
alike as materialized (
    select bool_and(keyed) and :followers::bigint > 0 as keyed, min(seq) as first, max(seq) as last,
        array_agg(seq) as seqs
    from member),
-- Which of them have ended.
doubtful as materialized (
    select {some_ended} then commandbus.ended_among(a.seqs) end as ended
    from alike a),
leased as (
    insert into commandbus.lease (domain, worker, claimed_at, until, seqs, unusual)
    select :domain::text, :worker::text, max(m.now), max(m.now) + :duration::bigint,
        array_agg(t.seq order by t.position) filter (where t.seq > 0),
        json_object_agg(t.seq, json_build_array(t.attempts + 1, t.crashes, t.releases, t.keyed))
            filter (where t.attempts > 0 or t.crashes > 0 or t.releases > 0
                or t.seq = 0 or t.keyed and not a.keyed)
    from moment m cross join alike a cross join lateral (
        select seq, attempts, crashes, releases, keyed, position from member
        union all select 0, 0, 0, 0, true, 0 where a.keyed) t
    {lease}
select t.seq, l.lease_id, m.now, t.priority, t.attempts, t.crashes, t.releases, t.keyed,
    c.expires_at <= m.now, m.now - c.due_at, t.leader,
    case when d.ended is null or t.seq <> all (d.ended) then c.command_type end,
    c.command_id, c.data, nullif(c.correlation_id, c.command_id), c.created_at, {c_claimed}
from member t {leased} cross join moment m cross join doubtful d
left join lateral (select * from commandbus.command c where c.seq = t.seq limit 1) c on true
order by t.position, t.priority, t.seq

-- name: no_chains
-- Most claims: one lease, and nothing comes along. Where the commands have consecutive numbers and nothing
-- is unusual about them, they are read in one walk along their index, at a third of the cost of a look-up
-- each. That walk sees no row without a command, which only another program can have left: such a row is
-- then dropped without a note, and among fewer than 16 commands with one.
alike as materialized (
    select bool_and(keyed) as keyed, min(seq) as first, max(seq) as last, array_agg(seq) as seqs,
        min(priority) as priority,
        count(*) >= 16 and count(*) = max(seq) - min(seq) + 1 and min(priority) = max(priority)
            and max(attempts + crashes + releases + keyed::integer) = 0 as dense
    from taken),
doubtful as materialized (
    select {some_ended} then commandbus.ended_among(a.seqs) end as ended
    from alike a),
leased as (
    insert into commandbus.lease (domain, worker, claimed_at, until, seqs, unusual)
    select :domain::text, :worker::text, m.now, m.now + :duration::bigint, a.seqs,
        (select json_object_agg(t.seq, json_build_array(t.attempts + 1, t.crashes, t.releases, t.keyed))
         from (
            select seq, attempts, crashes, releases, keyed from taken
            where attempts > 0 or crashes > 0 or releases > 0 or keyed and not a.keyed
            union all select 0, 0, 0, 0, true where a.keyed) t)
    from moment m cross join alike a where a.seqs is not null
    returning lease_id)
select c.seq, l.lease_id, m.now, a.priority, 0::smallint, 0::smallint, 0::smallint, false,
    c.expires_at <= m.now, m.now - c.due_at, 0::bigint, c.command_type,
    c.command_id, c.data, nullif(c.correlation_id, c.command_id), c.created_at, {c_claimed}
from leased l cross join moment m cross join alike a cross join doubtful d
cross join lateral (
    select * from commandbus.command c where c.seq between a.first and a.last order by c.seq offset 0) c
where a.dense and d.ended is null
union all
select t.seq, l.lease_id, m.now, t.priority, t.attempts, t.crashes, t.releases, t.keyed,
    c.expires_at <= m.now, m.now - c.due_at, 0,
    case when d.ended is null or t.seq <> all (d.ended) then c.command_type end,
    c.command_id, c.data, nullif(c.correlation_id, c.command_id), c.created_at, {c_claimed}
from taken t cross join leased l cross join moment m cross join alike a cross join doubtful d
left join lateral (select * from commandbus.command c where c.seq = t.seq limit 1) c on true
where d.ended is not null or not a.dense

-- name: some_ended
-- Two looks in indexes find nearly always that none of these numbers has an outcome. The function, which
-- looks at each, is set up only where it is called.
case when exists (select 1 from commandbus.outcome o where o.seq between a.first and a.last)
    or exists (select 1 from commandbus.receipt r
        where r.first_seq between a.first - 511 and a.last and r.last_seq >= a.first)

-- name: suspects_found
or :suspects::bigint > 0 and (not :beside_last::boolean or available_at <= m.now - :apart::bigint)

-- name: suspects_left
-- As store/suspects.py says: `suspects` at most, for a worker that holds no such command (`alone`) or one on
-- its last chance (`beside_last`), which is one with `last_chance` crashes; after `apart` microseconds in
-- the queue beside one with another chance, after `last_apart` beside any.
left_out as materialized (
    select seq from (
        select s.*, row_number() over line as position,
            :beside_last::boolean or coalesce(bool_or(s.last_chance) over (
                line rows between unbounded preceding and 1 preceding), false) as beside_last
        from (
            select f.priority, f.seq, f.crashes >= :last_chance::bigint as last_chance,
                m.now - f.available_at as waited
            from found f cross join moment m where f.crashes > 0) s
        window line as (order by s.priority, s.seq)) s
    where position > :suspects::bigint or waited < case
        when last_chance and beside_last then :last_apart::bigint
        when beside_last or last_chance and not (:alone::boolean and position = 1) then :apart::bigint
        else 0 end),
taken as not materialized (
    select * from found where crashes = 0 or seq not in (select seq from left_out)),

-- name: one_lease
having count(*) > 0
    returning lease_id)

-- name: under_one
cross join leased l

-- name: lease_each
group by t.seq
    returning lease_id, seqs[1] as seq)

-- name: under_each
join leased l on l.seq = t.seq
