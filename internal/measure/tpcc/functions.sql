-- The five transactions, one call each. Clause numbers are TPC-C's.

-- Which server runs this session: the name its agent gives it, else its cluster_name, else its address, else its start.
create function tpcc.server() returns text language sql stable as $$
    select coalesce(
        nullif(current_setting('coterie.replica', true), ''),
        nullif(current_setting('cluster_name'), ''),
        host(inet_server_addr()) || ':' || inet_server_port(),
        'started ' || to_char(pg_postmaster_start_time(), 'HH24:MI:SS.US'))
$$;

-- New-Order (2.4). The caller sorts the lines by supplying warehouse and item: stock rows are locked in that order.
create function tpcc.new_order(p_w int, p_d int, p_c int, p_items int[], p_supply int[], p_qty int[],
    out r_o_id int, out r_total numeric, out r_brand text)
language plpgsql as $$
declare
    v_w_tax    numeric;
    v_d_tax    numeric;
    v_discount numeric;
    v_price    numeric;
    v_i_data   text;
    v_s_data   text;
    v_dist     text;
    v_all_local int := 1;
begin
    select w_tax into strict v_w_tax from tpcc.warehouse where w_id = p_w;
    update tpcc.district set d_next_o_id = d_next_o_id + 1 where d_w_id = p_w and d_id = p_d
        returning d_tax, d_next_o_id - 1 into strict v_d_tax, r_o_id;
    select c_discount into strict v_discount from tpcc.customer where c_w_id = p_w and c_d_id = p_d and c_id = p_c;
    if exists (select from unnest(p_supply) s where s <> p_w) then
        v_all_local := 0;
    end if;
    insert into tpcc.orders (o_w_id, o_d_id, o_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local)
        values (p_w, p_d, r_o_id, p_c, now(), null, cardinality(p_items), v_all_local);
    insert into tpcc.new_order (no_w_id, no_d_id, no_o_id) values (p_w, p_d, r_o_id);
    r_total := 0;
    r_brand := '';
    for i in 1 .. cardinality(p_items) loop
        select i_price, i_data into v_price, v_i_data from tpcc.item where i_id = p_items[i];
        if not found then -- 2.4.1.4: one order in a hundred names an item that does not exist
            raise exception 'item number is not valid' using errcode = 'TPC01';
        end if;
        update tpcc.stock set
            s_quantity = case when s_quantity >= p_qty[i] + 10 then s_quantity - p_qty[i] else s_quantity - p_qty[i] + 91 end,
            s_ytd = s_ytd + p_qty[i],
            s_order_cnt = s_order_cnt + 1,
            s_remote_cnt = s_remote_cnt + case when p_supply[i] = p_w then 0 else 1 end
            where s_w_id = p_supply[i] and s_i_id = p_items[i]
            returning s_data, case p_d when 1 then s_dist_01 when 2 then s_dist_02 when 3 then s_dist_03 when 4 then s_dist_04
                when 5 then s_dist_05 when 6 then s_dist_06 when 7 then s_dist_07 when 8 then s_dist_08 when 9 then s_dist_09
                else s_dist_10 end
            into strict v_s_data, v_dist;
        insert into tpcc.order_line (ol_w_id, ol_d_id, ol_o_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d,
                ol_quantity, ol_amount, ol_dist_info)
            values (p_w, p_d, r_o_id, i, p_items[i], p_supply[i], null, p_qty[i], p_qty[i] * v_price, v_dist);
        r_total := r_total + p_qty[i] * v_price;
        r_brand := r_brand || case when v_i_data like '%ORIGINAL%' and v_s_data like '%ORIGINAL%' then 'B' else 'G' end;
    end loop;
    r_total := round(r_total * (1 - v_discount) * (1 + v_w_tax + v_d_tax), 2);
end
$$;

-- 2.5.2.2: by last name, the customer in the middle when ordered by first name.
create function tpcc.customer_by_name(p_w int, p_d int, p_last text) returns int language sql stable as $$
    select c_id from (
        select c_id, row_number() over (order by c_first, c_id) as at, count(*) over () as n
        from tpcc.customer where c_w_id = p_w and c_d_id = p_d and c_last = p_last
    ) named where at = (n + 1) / 2
$$;

-- Payment (2.5). The customer is given by p_c, or, where that is null, by p_last.
create function tpcc.payment(p_w int, p_d int, p_c_w int, p_c_d int, p_c int, p_last text, p_amount numeric,
    out r_c_id int, out r_balance numeric)
language plpgsql as $$
declare
    v_w_name text;
    v_d_name text;
begin
    update tpcc.warehouse set w_ytd = w_ytd + p_amount where w_id = p_w returning w_name into strict v_w_name;
    update tpcc.district set d_ytd = d_ytd + p_amount where d_w_id = p_w and d_id = p_d returning d_name into strict v_d_name;
    r_c_id := coalesce(p_c, tpcc.customer_by_name(p_c_w, p_c_d, p_last));
    update tpcc.customer set
        c_balance = c_balance - p_amount,
        c_ytd_payment = c_ytd_payment + p_amount,
        c_payment_cnt = c_payment_cnt + 1,
        c_data = case when c_credit = 'BC'
            then left(concat_ws(' ', c_id, c_d_id, c_w_id, p_d, p_w, p_amount, c_data), 500) else c_data end
        where c_w_id = p_c_w and c_d_id = p_c_d and c_id = r_c_id
        returning c_balance into strict r_balance;
    insert into tpcc.history (h_c_w_id, h_c_d_id, h_c_id, h_w_id, h_d_id, h_date, h_amount, h_data)
        values (p_c_w, p_c_d, r_c_id, p_w, p_d, now(), p_amount, v_w_name || '    ' || v_d_name);
end
$$;

-- Order-Status (2.6).
create function tpcc.order_status(p_w int, p_d int, p_c int, p_last text,
    out r_c_id int, out r_balance numeric, out r_o_id int, out r_lines int, out r_amount numeric, out r_server text)
language plpgsql stable as $$
begin
    r_server := tpcc.server();
    r_c_id := coalesce(p_c, tpcc.customer_by_name(p_w, p_d, p_last));
    select c_balance into strict r_balance from tpcc.customer where c_w_id = p_w and c_d_id = p_d and c_id = r_c_id;
    select o_id into r_o_id from tpcc.orders where o_w_id = p_w and o_d_id = p_d and o_c_id = r_c_id order by o_id desc limit 1;
    select count(*), sum(ol_amount) into r_lines, r_amount
        from tpcc.order_line where ol_w_id = p_w and ol_d_id = p_d and ol_o_id = r_o_id;
end
$$;

-- Delivery (2.7): the oldest new order of each district. Returns how many districts had none.
create function tpcc.delivery(p_w int, p_carrier int, out r_skipped int) language plpgsql as $$
declare
    v_o_id   int;
    v_c_id   int;
    v_amount numeric;
begin
    r_skipped := 0;
    for v_d in 1 .. 10 loop
        select no_o_id into v_o_id from tpcc.new_order where no_w_id = p_w and no_d_id = v_d
            order by no_o_id limit 1 for update;
        if not found then
            r_skipped := r_skipped + 1;
            continue;
        end if;
        delete from tpcc.new_order where no_w_id = p_w and no_d_id = v_d and no_o_id = v_o_id;
        update tpcc.orders set o_carrier_id = p_carrier where o_w_id = p_w and o_d_id = v_d and o_id = v_o_id
            returning o_c_id into strict v_c_id;
        with lines as (
            update tpcc.order_line set ol_delivery_d = now() where ol_w_id = p_w and ol_d_id = v_d and ol_o_id = v_o_id
            returning ol_amount
        ) select sum(ol_amount) into v_amount from lines;
        update tpcc.customer set c_balance = c_balance + v_amount, c_delivery_cnt = c_delivery_cnt + 1
            where c_w_id = p_w and c_d_id = v_d and c_id = v_c_id;
    end loop;
end
$$;

-- Stock-Level (2.8): items of the district's last twenty orders that are short.
create function tpcc.stock_level(p_w int, p_d int, p_threshold int, out r_short int, out r_server text)
language plpgsql stable as $$
declare
    v_next int;
begin
    r_server := tpcc.server();
    select d_next_o_id into strict v_next from tpcc.district where d_w_id = p_w and d_id = p_d;
    select count(distinct s_i_id) into r_short
        from tpcc.order_line join tpcc.stock on s_w_id = p_w and s_i_id = ol_i_id
        where ol_w_id = p_w and ol_d_id = p_d and ol_o_id >= v_next - 20 and ol_o_id < v_next and s_quantity < p_threshold;
end
$$;
